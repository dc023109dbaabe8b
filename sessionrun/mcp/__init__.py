"""A door for agents: a server of the Model Context Protocol (MCP), which offers sessions as tools.

What may come in: tools, which call the client and keep each answer small.  What may not: rules of sessions, which
belong to the client.  Only `server` knows the library of the protocol, which the extra `mcp` installs.
"""
