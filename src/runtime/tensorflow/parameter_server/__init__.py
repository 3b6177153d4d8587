"""Train by TensorFlow's parameter servers: the coordinator, and the model that the servers hold."""
