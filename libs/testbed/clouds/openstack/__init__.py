"""The parts of OpenStack that authenticate and read servers and networks, in memory.

Served: Keystone v3 (versions, tokens by password and by application credential, catalogue with several
regions), Nova (versions, microversions, servers with pages and the `name` filter, instance actions also of
deleted servers) and Neutron (networks). The documents have the fields of the projects' own samples. Not
served: writes other than for a token, and every other path.
"""
