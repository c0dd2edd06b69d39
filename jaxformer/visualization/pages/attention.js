document.title = byId("title").textContent = data.title;
const cross = data.kinds[data.kinds.length - 1];
for (const [name, tokens] of [["Source", cross.columns], ["Target", cross.rows]]) {
  const line = add(byId("sentences"), "span");
  add(line, "b", name);
  line.append(tokens.join(" "));
}
showAttention(byId("attention"), data.kinds, {});
