"""Turn a study file into the cells and folders that DVC runs."""
