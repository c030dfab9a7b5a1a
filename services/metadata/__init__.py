"""Polls machines over the Talos API and publishes their facts. All facts of a Node come from here."""
