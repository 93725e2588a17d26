"""The documentation site (`make site`): MkDocs hooks that build it from the files of the repository as they are.

`hooks` is what MkDocs calls: it adds pages and expands the globs of the navigation. `repository` says which page of the site a file is.
`markdown_rules` renders links, anchors and lists as on a repository page. `command_line_page` and `python_page` are generated references.
`theme/` adds a content security policy, the colours and Mermaid to MkDocs Material.

Invariant: a link that works on a repository page works on the site, or the build fails. Pages load nothing from another host: their content
security policy forbids it.
"""
