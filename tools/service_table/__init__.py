"""Writes the files that follow the service table: for the chart, for compose and for the docs."""
