"""Train by asynchronous workers, with the parameters on parameter servers or in shared memory."""
