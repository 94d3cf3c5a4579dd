"""The paper's toy experiment (section 3.2): does attention find the edges of a Markov random field that is known?"""
