"""Root and keeper: they keep the processes of a session while supervisors come and go.

    root            adopts what a dead keeper leaves behind; starts keepers; writes nothing
     └ keeper       parent of all jobs; spawns, reaps, kills trees; the only writer of the ledger; no policy
        ├ supervisor    decides; started again by the keeper
        └ job ... job

Each is restarted by its parent only.  Orphans climb to ancestors, never to siblings: so a dead keeper's jobs come
to the root, which hands their exit codes to the next keeper, and any number of deaths of keeper and supervisor, in
any order, costs no code.  Should the root be gone, work goes on; should then the keeper die too, the supervisor
becomes the new root, and codes of jobs that ran at that moment are lost.

Root and keeper are one small interpreter, forked, without site-packages: standard library and the few modules of
`store` that need no more (such as `logs`, `locks`), all of them imported at the start, so that an
upgrade of the package in mid-session cannot hurt them.
"""
