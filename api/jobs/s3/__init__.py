"""Blobs in a bucket that speaks S3; with the extra `server`.

bucket  objects by their digest: what a child is handed, too
blobs   the same with a row of the database for each, which says when it was last used
faults  its errors as those of the store
"""
