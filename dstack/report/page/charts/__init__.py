"""The charts of pages: Bokeh draws them; their modules lay out boxes, bars and edges."""
