"""Run each training as a job of Slurm's, in which the same command finds its cluster."""
