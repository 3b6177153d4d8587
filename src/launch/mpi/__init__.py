"""Have `mpiexec` start processes, by an agent for each."""
