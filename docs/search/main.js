// Search without a server, in place of mkdocs' own: a page that is opened from a folder may load scripts, and no more.
"use strict";

(() => {
  const input = document.getElementById("mkdocs-search-query");
  const results = document.getElementById("mkdocs-search-results");
  if (!input || !results) return; // any page but that of the search

  const load = (name) =>
    new Promise((loaded, failed) => {
      const script = document.createElement("script");
      script.src = `${base_url}/search/${name}`;
      script.onload = loaded;
      script.onerror = failed;
      document.head.append(script);
    });

  const shown = (found) => {
    const link = document.createElement("a");
    link.href = `${base_url}/${found.location}`;
    link.textContent = found.title;
    const title = document.createElement("h3");
    title.append(link);
    const text = document.createElement("p");
    text.textContent = found.text.substring(0, 200);
    const article = document.createElement("article");
    article.append(title, text);
    return article;
  };

  const begin = () => {
    const sections = new Map(searchIndex.docs.map((section) => [section.location, section]));
    const index = lunr(function () {
      this.ref("location");
      this.field("title", { boost: 10 });
      this.field("text");
      searchIndex.docs.forEach((section) => this.add(section));
    });
    const search = () => {
      const words = input.value.replace(/[:~^+*-]/g, " ").trim(); // these mean something to lunr
      const found = words ? index.search(words) : [];
      results.replaceChildren(...found.map((one) => shown(sections.get(one.ref))));
      if (!found.length) results.textContent = words ? results.dataset.noResultsText : "";
    };
    input.addEventListener("keyup", search);
    input.value = new URLSearchParams(window.location.search).get("q") ?? "";
    search();
  };

  load("lunr.js").then(() => load("search_index.js")).then(begin);
})();
