"""Every verb of the command as a Python function, one file per verb: it joins the packages and returns a result."""
