"""Which instances to ask for, and what the answers prove. Pure: no I/O, no clock."""
