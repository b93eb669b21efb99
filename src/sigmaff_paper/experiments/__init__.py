"""The experiments of the paper, by name: same tables and figures, with the published numbers beside ours."""
