"""Emulate hosts on this machine: network namespaces, joined by links to a switch."""
