"""The part of the Thalassa Cloud API that reads machines and VPCs, in memory.

Served: machines and VPCs by identity or slug and as lists without pages, with the filter `vpc`; organisations
and projects by their headers; personal access tokens, and client credentials with access tokens.
Its only source is the cloud's public Go client: the objects have the fields of its types, and errors are the
object with `message` that it reads. What a real API answers under another organisation is not known; this
one answers 403. Not served: writes (403), filters of other fields, every other path (404).
"""
