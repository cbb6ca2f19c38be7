#!/usr/bin/env node
// Cuts GitHub's own OpenAPI description down to the paths that the client uses:
//   openapi_slice.mjs DESCRIPTION.json OUT.json PATH...
// Only what these paths refer to stays, so that a validator loads it in seconds.
import fs from 'node:fs'

const [source, target, ...paths] = process.argv.slice(2)
if (!paths.length) {
  console.error('usage: openapi_slice.mjs DESCRIPTION.json OUT.json PATH...')
  process.exit(2)
}
const whole = JSON.parse(fs.readFileSync(source))
const unknown = paths.filter(path => !whole.paths[path])
if (unknown.length) {
  console.error(`error: not in GitHub's description: ${unknown.join(' ')}`)
  process.exit(1)
}

const components = {}
const follow = node => {
  if (node === null || typeof node !== 'object') return
  const [, kind, name] = /^#\/components\/([^/]+)\/([^/]+)$/.exec(node.$ref ?? '') ?? []
  if (kind && !components[kind]?.[name]) {
    components[kind] ??= {}
    components[kind][name] = whole.components[kind][name]
    follow(components[kind][name])
  }
  Object.values(node).forEach(follow)
}

const kept = Object.fromEntries(paths.map(path => [path, whole.paths[path]]))
follow(kept)
const { openapi, info, servers } = whole
fs.writeFileSync(target, JSON.stringify({ openapi, info, servers, paths: kept, components }))
