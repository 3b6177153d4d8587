"""Train by TensorFlow: loops, Keras's fit, and parameter servers."""
