"""Solvers over plain arrays: a `Problem` in, the best choice and a proven bound out.  Nothing here knows of tensors.

problem, evaluate, rows      what is solved, and the one judge of choices
solve, solver, state         the one interface, the registry, and what is known on the way
control, goal                when to stop, and who hears of better choices
reduction                    the presolved problem
elimination, prices          exact elimination; memory limits as prices over it
messages, program            message passing where that is too wide; the integer program
automatic, solvers           which of these when
large, native                the portfolio for large problems, and compiled kernels
certificates, checks         proofs of bounds, and their checker
saved                        problems in files
brute, stages                every choice one by one; layers dealt to the stages of a pipeline
"""
