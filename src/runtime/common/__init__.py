"""Code that strategies of every framework share.

It holds the context of a rank, the step policy, the batch split, the check of a checkpoint, and messages
between processes.
"""
