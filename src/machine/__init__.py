"""Deal with the machine: find its devices, set up processes, slow devices down."""
