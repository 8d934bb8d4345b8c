"""Work of the service that outlives a request: held in a database and done by workers in children that can be killed.

store     what was accepted, for whom, and how far it is
database  what the store asks of a database: `sqlite`, `postgres`
blobs     inputs and results, by content; `blob_store`: what the store asks of wherever they lie, `s3`: a bucket
opening   the store that settings name
tasks     what is computed, and when two requests ask the same
leases    who works on what; `turns`, `endings`: whose turn it is, and how tasks end
worker, forks, child, execute: doing it
"""
