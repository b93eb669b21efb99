"""The experiments of the paper by name: its tables and figures, with our numbers beside the published ones."""
