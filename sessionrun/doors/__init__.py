"""Sessions as pages in a browser and as tools for agents: the report, what `serve` shows, the server of MCP.

In: what a page is made of, its drawings, its looks; who may ask; the tools, and how much each answers.
Not in: what is true of a session, and in which words it is told: that is `client` and `model.wording`.
"""
