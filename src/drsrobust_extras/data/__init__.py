"""Raw files to data sets, generated sets, and the models of the study."""
