#!/usr/bin/env node
// Draws comments the way GitHub does: GitHub-flavoured Markdown in which a line end is a line break,
// cleaned by GitHub's allow-list (the default of rehype-sanitize), alerts made into boxes, GitHub's
// style sheet, and then a picture by a browser that may load nothing else.
//   screenshots.mjs BROWSER FOLDER FILE.md...
// Ends with 1 when GitHub would remove something, refuse the length, or the page is wider than its place.
import fs from 'node:fs'
import path from 'node:path'
import { createRequire } from 'node:module'
import { chromium } from 'playwright-core'
import rehypeRaw from 'rehype-raw'
import rehypeSanitize from 'rehype-sanitize'
import rehypeStringify from 'rehype-stringify'
import remarkBreaks from 'remark-breaks'
import remarkGfm from 'remark-gfm'
import remarkParse from 'remark-parse'
import remarkRehype from 'remark-rehype'
import { unified } from 'unified'
import { visit } from 'unist-util-visit'

const MOST_CHARACTERS = 65536
const WIDTHS = { '': 860, '-400': 400 }
const FRAMES = {
  light: { page: '#ffffff', line: '#d1d9e0', head: '#f6f8fa', text: '#59636e' },
  dark: { page: '#0d1117', line: '#3d444d', head: '#151b23', text: '#9198a1' },
}
const [executablePath, folder, ...files] = process.argv.slice(2)
if (!files.length) {
  console.error('usage: screenshots.mjs BROWSER FOLDER FILE.md...')
  process.exit(2)
}
const styles = path.dirname(createRequire(import.meta.url).resolve('github-markdown-css/package.json'))

// Every element and every attribute of a tree, counted.
function inventory(tree) {
  const counts = new Map()
  visit(tree, 'element', element => {
    const names = [element.tagName, ...Object.keys(element.properties).map(key => `${element.tagName} ${key}`)]
    for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1)
  })
  return counts
}

// `> [!WARNING]` is a quotation until after the cleaning.
function drawAlerts() {
  return tree => visit(tree, 'element', quote => {
    const paragraph = quote.tagName === 'blockquote' && quote.children.find(child => child.type === 'element')
    const mark = paragraph && /^\[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\]\s*/.exec(paragraph.children[0]?.value ?? '')
    if (!mark) return
    const kind = mark[1].toLowerCase()
    paragraph.children[0].value = paragraph.children[0].value.slice(mark[0].length)
    const title = { type: 'text', value: kind[0].toUpperCase() + kind.slice(1) }
    quote.tagName = 'div'
    quote.properties = { className: ['markdown-alert', `markdown-alert-${kind}`] }
    quote.children.unshift({
      type: 'element', tagName: 'p', properties: { className: ['markdown-alert-title'] }, children: [title],
    })
  })
}

// Lines of a diff have GitHub's colours, which its server gives them.
function colourDiffs() {
  const kinds = { '+': 'pl-mi1', '-': 'pl-md', '@': 'pl-mdr' }
  return tree => visit(tree, 'element', code => {
    if (code.tagName !== 'code' || !code.properties.className?.includes('language-diff')) return
    code.children = code.children[0].value.trimEnd().split('\n').map(line => ({
      type: 'element', tagName: 'span', properties: { className: [kinds[line[0]] ?? ''] },
      children: [{ type: 'text', value: `${line}\n` }],
    }))
  })
}

async function asGitHub(markdown) {
  const read = unified().use(remarkParse).use(remarkGfm).use(remarkBreaks)
    .use(remarkRehype, { allowDangerousHtml: true }).use(rehypeRaw)
  const raw = await read.run(read.parse(markdown))
  const before = inventory(raw)
  const clean = await unified().use(rehypeSanitize).run(raw)
  const after = inventory(clean)
  const removed = [...before].filter(([name, count]) => count !== after.get(name)).map(([name]) => name)
  const drawn = await unified().use(drawAlerts).use(colourDiffs).run(clean)
  return { html: unified().use(rehypeStringify).stringify(drawn), removed }
}

function asPage(html, theme) {
  const { page, line, head, text } = FRAMES[theme]
  const css = fs.readFileSync(path.join(styles, `github-markdown-${theme}.css`), 'utf8')
  return `<!doctype html><meta charset="utf-8"><style>${css}
body { margin: 12px; background: ${page} }
.frame { border: 1px solid ${line}; border-radius: 6px; overflow: hidden }
.who { padding: 8px 16px; background: ${head}; border-bottom: 1px solid ${line}; color: ${text};
  font: 14px "Noto Sans", "Liberation Sans", sans-serif }
.markdown-body { padding: 16px; font-size: 14px }
</style><div class="frame"><div class="who"><b>github-actions</b> bot commented</div>
<div class="markdown-body">${html}</div></div>`
}

const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu'] })
const faults = []
try {
  for (const file of files) {
    const markdown = fs.readFileSync(file, 'utf8')
    const { html, removed } = await asGitHub(markdown)
    const name = path.basename(file, '.md')
    if (removed.length) faults.push(`${name}: GitHub would remove ${removed.join(', ')}`)
    if ([...markdown].length > MOST_CHARACTERS) faults.push(`${name}: longer than a comment may be`)
    for (const theme of Object.keys(FRAMES)) for (const [suffix, width] of Object.entries(WIDTHS)) {
      const page = await browser.newPage({ viewport: { width, height: 200 }, colorScheme: theme })
      await page.route('**', route => {
        faults.push(`${name}: wanted to load ${route.request().url()}`)
        return route.abort()
      })
      await page.setContent(asPage(html, theme), { waitUntil: 'load' })
      if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth))
        faults.push(`${name}: wider than a comment`)
      await page.screenshot({ path: path.join(folder, `${name}-${theme}${suffix}.png`), fullPage: true })
      await page.close()
    }
    console.log(`${name}: ${Buffer.byteLength(markdown).toLocaleString('en')} bytes`)
  }
} finally {
  await browser.close()
}
faults.forEach(fault => console.error(`error: ${fault}`))
process.exit(faults.length ? 1 : 0)
