"""Run the Python code in the first argument, as a process that has imported nothing else."""

import sys

if __name__ == "__main__":
    exec(sys.argv[1])
