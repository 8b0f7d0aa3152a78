"""The command `vitrail`: `main` dispatches, and each verb has one file that is loaded only when it runs.

A verb's file imports its part of vitrail inside the function, so that neither `--help` nor a mistyped verb loads torch.
"""
