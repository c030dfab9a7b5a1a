"""The decisions of the labeler, without side effects."""
