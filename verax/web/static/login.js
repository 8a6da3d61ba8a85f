const form = document.getElementById("form");
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const body = JSON.stringify({token: document.getElementById("token").value});
  const headers = {"Content-Type": "application/json"};
  const response = await fetch("/api/login", {method: "POST", body, headers});
  if (response.ok) location.assign("/");
  const problem = document.getElementById("problem");
  problem.textContent = response.ok ? "" : (await response.json()).message;
  problem.hidden = response.ok;
});
