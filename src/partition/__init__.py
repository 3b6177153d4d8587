"""Cut a model into stages: plan the cut here, and trace, measure and cut models of each framework below."""
