"""The store's database on a PostgreSQL server that several hosts share; with the extra `server`.

database    connections and transactions
statements  the store's statements in the words of PostgreSQL, and its rows
schema      tables and triggers
listening   who was written to, as the server says it
faults      its errors as those of the store
"""
