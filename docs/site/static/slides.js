"use strict";
// The drawings' colours for a white page, whatever the browser prefers.
document.body.dataset.theme = "light";
