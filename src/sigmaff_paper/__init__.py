"""The experiments of the LNK paper, and the generator of data like QM7-X. Nothing in ``sigmaff`` imports this."""
