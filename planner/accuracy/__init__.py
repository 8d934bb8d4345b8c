"""The cost model against published measurements: rows -> cases -> predictions -> figures per data set."""
