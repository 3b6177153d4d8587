"""Say what a study's runs mean: which way to train, what it gives and costs, and what isn't known."""
