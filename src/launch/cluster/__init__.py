"""Run the processes of a job on the hosts of a cluster, by an agent on each; one file knows the engine."""
