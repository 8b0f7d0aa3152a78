"""Every verb of the command as a Python function, one file each: it joins the rooms and returns a result."""
