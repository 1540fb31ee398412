"""The runs of one request: which are finished already, and how the others run so that none can harm another.

records     what became of a run: read from its run.json alone, whoever ran it
places      where runs are written, and what is left there
attempt     one run, in this process
pool        runs in processes of their own, several at once; `progress` on stderr, `waiting` for those of others
plan        which jobs of a sweep are to run, and about how long they will take
jobs        a sweep, under any launcher; `one` is a command of a single run
complaints  what is wrong with a sweep, before any of it starts
"""
