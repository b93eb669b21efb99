"""The numbers of the paper, table by table: Wollschläger et al., Uncertainty Estimation for Molecules, ICML 2023."""
