"use strict";
// The drawings' colours for a white page, whatever the browser prefers. The script is loaded before there is a body.
document.addEventListener("DOMContentLoaded", () => { document.body.dataset.theme = "light"; });
