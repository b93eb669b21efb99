"""Kills, signals, full disks and rivals at every file operation of every long command: nothing may be lost.

``python -m storm`` in the folder ``tests``, or ``make storm``, runs all of it. The default suite runs a part.
"""
