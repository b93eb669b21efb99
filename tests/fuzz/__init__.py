"""Mutated model files, data files, configurations and command lines: none may crash, hang, take memory or pass unseen.

``python -m fuzz`` in the folder ``tests``, or ``make fuzz``, runs as many as one likes. Every one that ever broke
something is a file in ``corpus``, which is always run.
"""
