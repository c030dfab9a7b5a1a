"""The part of the Thalassa Cloud API that has machines, VPCs and load balancers, in memory.

Served: machines and VPCs by identity or slug and as lists without pages; load balancers with listeners,
target groups and attachments, also their writes; the filters `vpc` and `matchLabels`; organisations and
projects by their headers; personal access tokens, and client credentials with access tokens.
Its only source is the cloud's public Go client: the objects have the fields of its types, and errors are the
object with `message` that it reads. What a real API answers under another organisation is not known; this
one answers 403. `balancers.py` and `bodies.py` name what is assumed about writes. Not served: other writes,
filters of other fields, every other path (404).
"""
