// Names in ClickHouse's SQL.

export function quotedName(name) {
  return `\`${name.replaceAll("\\", "\\\\").replaceAll("`", "\\`")}\``;
}

/** `database.table`, of which only the first dot separates. */
export function quoted(target) {
  const dot = target.indexOf(".");
  return dot < 0 ? quotedName(target) : `${quotedName(target.slice(0, dot))}.${quotedName(target.slice(dot + 1))}`;
}
