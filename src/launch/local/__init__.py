"""Start and end processes on this machine: the parent's own children, or those of a fork server."""
