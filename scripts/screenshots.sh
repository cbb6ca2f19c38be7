#!/usr/bin/env bash
# The comment of every outcome as a reviewer sees it on GitHub, light and dark: build/screenshots/*.png.
# The few that README shows go to docs/screenshots/. The texts are the golden files of the tests.
set -euo pipefail

tools=build/screenshots-tools
out=build/screenshots
shown=(reproduced code-drift)

for program in node npm; do
  command -v "$program" >/dev/null || { echo "skipped: screenshots need $program, which is not here"; exit 0; }
done
browser=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
[ -n "$browser" ] || { echo "skipped: screenshots need Chromium; CHROMIUM=... names one"; exit 0; }

# without one every mark of the comment is an empty box
if command -v fc-list >/dev/null && ! fc-list | grep -qi emoji; then
  echo "skipped: screenshots need a font with emoji (Debian, Ubuntu: fonts-noto-color-emoji)"; exit 0
fi

mkdir -p "$tools" "$out" docs/screenshots
npm install --silent --no-audit --no-fund --no-package-lock --prefix "$tools" \
  github-markdown-css@5 playwright-core@1 rehype-raw@7 rehype-sanitize@6 rehype-stringify@10 \
  remark-breaks@4 remark-gfm@4 remark-parse@11 remark-rehype@11 unified@11 unist-util-visit@5
cp scripts/screenshots.mjs "$tools"/
node "$tools"/screenshots.mjs "$browser" "$out" tests/report/golden/*.md

for name in "${shown[@]}"; do
  for theme in light dark; do
    cp "$out/$name-$theme.png" docs/screenshots/
  done
done
