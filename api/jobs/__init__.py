"""Work of the service that outlives a request: kept in SQLite, done by workers in children that can be killed.

store     what was accepted, for whom, and how far it is
blobs     inputs and results, by content
tasks     what is computed, and when two requests ask the same
leases    who works on what
worker, forks, child, execute: doing it
"""
