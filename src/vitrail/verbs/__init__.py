"""Every verb of the command as a Python function, one file per verb: what users call as `vitrail.VERB`."""
