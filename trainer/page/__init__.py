"""What all pages of HTML share: one file that needs nothing but itself, light or dark, on a desk, a phone and paper.

Templates are jinja2 and escape whatever they are given; pictures are SVG inside of the page; no script runs. Knows
nothing of what is shown.
"""
